"""`greenserve up`: which processes there are, and how they are kept running."""
