"""What adaptree costs beside its peers and beside the least work that can be: `make bench`."""
