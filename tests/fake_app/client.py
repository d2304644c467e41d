"""The client of the fake app: never asked for anything."""

from flwr.clientapp import ClientApp

app = ClientApp()
