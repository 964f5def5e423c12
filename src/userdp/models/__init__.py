"""The public face: estimators, scalers, the private mean, model files."""
