"""What one user contributes: gradients, one-pass SGD, moments, and the kernels that compute them."""
