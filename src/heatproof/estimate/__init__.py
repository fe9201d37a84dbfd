"""What a config costs on this device, before it is run."""
