"""Everything that is asked, resolved."""
