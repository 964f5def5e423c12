"""Mechanisms: many vectors in, one releasable vector out, with its sensitivity and its cost. One file each."""
