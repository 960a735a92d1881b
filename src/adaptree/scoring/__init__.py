"""What answers of more than a label or a number are scored by, from sums over the inputs."""
