"""A script as a member of a collective group."""

from collective_user import meets

meets()
