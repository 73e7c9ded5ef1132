"""The servers that `evertick up` runs when no outer ones are configured."""
