"""Parts of the aws provider: signing, metadata, credentials, the Query API, and the plan of a stop."""
