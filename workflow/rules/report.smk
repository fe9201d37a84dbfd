# Figures and pages.
