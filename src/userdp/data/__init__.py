"""Tables to users: what is declared, whose row is whose, files."""
