"""PostgreSQL and Redis from wheels, and checks of servers of one's own."""
