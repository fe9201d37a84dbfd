"""Tables of the report, with the figures drawn from them."""
