"""Everything an operator owns: fields, checks, consequences, import and export."""
