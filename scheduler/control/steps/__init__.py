"""The steps that a service's policy chooses from, each fed from the database."""
