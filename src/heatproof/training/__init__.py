"""Training from scratch and in-domain finetuning."""
