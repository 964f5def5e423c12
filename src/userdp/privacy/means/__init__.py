"""Private means: many vectors in, one releasable vector out. One file each."""
