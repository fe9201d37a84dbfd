"""Which published claims held on this data: a registry of claims, and the stage that tests them."""
