"""Types of specs: what each stage is told, as plain JSON values.

The plan builds specs, and the functions of stages read them. They are plain dicts, whose JSON decides the keys of
results; these are their types for a type checker, and no more. Import them under ``TYPE_CHECKING`` alone: what stands
there is no part of a stage's digest of code, so that a key which one stage gets makes no other stage's results stale.
A test holds the specs of several configs against the types in the signatures of the stages.

A sequence of fixed length, such as (grid, baseline), is a tuple here and a list once it was JSON.
"""
