"""What a network is asked about images: one type for each kind of response, and the stage that caches them."""
