"""What containers and pods use, against what they are known to use."""
