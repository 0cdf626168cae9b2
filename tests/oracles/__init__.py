"""Reference implementations that tests hold the product against: plain, slow and easy to check by eye."""
