"""REST: /api/v1/ for the whole product, and OpenAI's files and batches under /v1/."""
