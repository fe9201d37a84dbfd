"""For all tests: none of them fails because the machine is busy."""

from hypothesis import settings

settings.register_profile("heatproof", deadline=None)
settings.load_profile("heatproof")
