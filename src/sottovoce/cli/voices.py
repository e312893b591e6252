"""`sottovoce voices`: voices by name, which --speakers recognises."""

from __future__ import annotations

import click

from sottovoce.cli.options import voice_of


@click.group()
def voices() -> None:
    """Keep voices by name; --speakers recognises them in recordings and live.

    They are WAV files in ~/.local/share/sottovoce/voices, or in the folder SOTTOVOCE_VOICES.
    """


@voices.command()
@click.argument("name")
@click.argument("file")
def add(name: str, file: str) -> None:
    """Keep a voice, or replace it: 1 to 120 seconds of one person's speech."""
    from sottovoce.speakers.diarize import VoiceBook

    VoiceBook().add(name, voice_of(file, "FILE"))


@voices.command("list")
def list_() -> None:
    """List the names."""
    from sottovoce.speakers.diarize import VoiceBook

    for name in VoiceBook().names:
        click.echo(name)


@voices.command()
@click.argument("name")
def remove(name: str) -> None:
    """Delete a voice."""
    from sottovoce.speakers.diarize import VoiceBook

    VoiceBook().remove(name)
