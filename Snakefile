# `include:` would leave the workflow without its default target.
workflow.include("workflow/Snakefile", overwrite_default_target=True)
