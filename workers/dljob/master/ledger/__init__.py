"""The ledger's rules: `rules` decides the account of each rank and books changes, `view` shows the sums to users."""
