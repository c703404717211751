"""Alembic's entry: runs the migrations on the connection it is given. Called by `migrate.upgrade` alone."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table="mailpipe_version")
with context.begin_transaction():
    context.run_migrations()
