"""Start the workflow, run a job, and keep manifests and Snakemake in step."""
