"""Former names of modules, for one release."""
