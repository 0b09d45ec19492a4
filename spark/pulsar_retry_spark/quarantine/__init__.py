"""Tables that keep failed rows, beside the topics or instead of them."""
