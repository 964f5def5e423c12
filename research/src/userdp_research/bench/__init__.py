"""Solvers measured side by side: `userdp-bench`.

Nothing here is private: runs are seeded so that they can be repeated, and scores are taken from data as they are. What
is measured, and on which data, may be published.
"""
