"""Tables, figures and pages, made from tables only."""
