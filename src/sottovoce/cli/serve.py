"""`sottovoce serve`: its options; the work is in `serve_app`.

Imports nothing heavy: `--help` answers at once.
"""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.configuration import API_KEYS, ENVIRONMENT, with_configuration
from sottovoce.cli.flags import Clock, Finite, SectionedCommand
from sottovoce.cli.options import DEFERRAL, MODEL, SERVER, beam_size
from sottovoce.options.schema import Option

LISTENING = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
    ),
    click.option(
        "--wyoming",
        metavar="tcp://HOST:PORT",
        help="Also speak Wyoming (Home Assistant) there; it knows no keys. [no]",
    ),
    click.option(
        "--hls",
        type=click.Path(file_okay=False, writable=True),
        metavar="DIR",
        help="Also write captions that are shared as HLS there, a folder of WebVTT for each session. [no]",
    ),
    click.option(
        "--caption-host",
        multiple=True,
        metavar="HOST",
        help="Another host that shared captions may be posted to, as YouTube and Zoom take them. May be "
        "repeated. [those two alone]",
    ),
    click.option(
        "--traces",
        is_flag=True,
        help="Send OpenTelemetry's traces, by OTLP over HTTP, as the variables OTEL_EXPORTER_OTLP_… say "
        "(extra `trace`).",
    ),
    click.option("--tls-certificate", metavar="FILE", help="PEM file, for https (with --tls-key)."),
    click.option("--tls-key", metavar="FILE", help="PEM file with the key of the certificate."),
)
MODELS = (
    click.option(
        "--also-model",
        multiple=True,
        metavar="NAME|PATH",
        help="Another model that may be asked for; loaded at the first request. May be repeated.",
    ),
    click.option(
        "--alias",
        multiple=True,
        metavar="NAME=MODEL",
        help="Another name of a model; OpenAI's names mean --model unless said here. May be repeated.",
    ),
    Option(
        "A larger model that reads again what the first is not sure of, in recordings; loaded at the start.",
        key="second_model",
        metavar="NAME|PATH",
    ),
    *DEFERRAL,
    click.option("--no-preload", is_flag=True, help="Load the model at the first request."),
    click.option(
        "--unload-after",
        type=Clock(),
        metavar="TIME",
        help="Let go of a model after so long without use. [never]",
    ),
    click.option(
        "--model-memory-mb",
        type=Finite(above=0),
        metavar="MB",
        help="For the weights of all models: those that were not used for longest make room. [no limit]",
    ),
)
ACCESS = (
    click.option(
        "--api-key-file",
        metavar="FILE",
        help=f"Keys, one a line, any of which opens the API; {API_KEYS} has more, separated by commas. "
        "[none: everybody may ask]",
    ),
    click.option(
        "--keys",
        metavar="FILE",
        help="More keys, with names, rates and quotas: a TOML file, read again when it changes and on "
        "SIGHUP. [none]",
    ),
    click.option(
        "--allow-origin",
        multiple=True,
        metavar="URL",
        help="A web page elsewhere that may ask, as https://example.org. May be repeated.",
    ),
    click.option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="A name of this server; may be repeated. *: any. "
        "[on a loopback address: its own names; with keys any, else addresses and private names]",
    ),
)
PROXIES = (
    click.option(
        "--forwarded-allow-ips",
        multiple=True,
        metavar="ADDRESS",
        help="A proxy, or a network of them, whose X-Forwarded-For is believed; *: all. May be repeated. "
        "[none]",
    ),
)
LIMITS = (
    click.option(
        "--max-sessions",
        type=click.IntRange(1),
        default=16,
        show_default=True,
        help="Live sessions at a time.",
    ),
    click.option(
        "--max-readers",
        type=click.IntRange(1),
        default=200,
        show_default=True,
        help="Readers of live sessions' captions at a time.",
    ),
    click.option(
        "--max-connections",
        type=click.IntRange(1),
        metavar="N",
        help="At a time, of requests and sockets. [what sessions and recordings need, and 256]",
    ),
    click.option(
        "--max-connections-per-address",
        type=click.IntRange(1),
        metavar="N",
        help="At a time, of one client; proxies of --forwarded-allow-ips aside. [half of all]",
    ),
    click.option(
        "--max-requests",
        type=click.IntRange(1),
        default=16,
        show_default=True,
        help="Recordings at a time, waiting ones among them.",
    ),
    click.option(
        "--max-upload-mb", type=Finite(above=0), default=1024.0, show_default=True, help="Of one request."
    ),
    click.option(
        "--max-uploads-mb",
        type=Finite(above=0),
        default=4096.0,
        show_default=True,
        help="Of all requests that are here; what is larger than 1 MB lies in temporary files.",
    ),
    click.option(
        "--max-duration",
        type=Clock(),
        metavar="TIME",
        default="4:00:00",
        show_default=True,
        help="Of one recording.",
    ),
    click.option(
        "--max-session",
        type=Clock(),
        metavar="TIME",
        default="4:00:00",
        show_default=True,
        help="Audio of one live session.",
    ),
    click.option(
        "--max-message-kb",
        type=click.IntRange(1),
        default=16 * 1024,
        show_default=True,
        help="One message of a live session; OpenAI's clients may send 15 MB at once.",
    ),
    click.option(
        "--max-wait",
        type=Finite(above=0),
        default=3.0,
        show_default=True,
        help="Seconds that live audio may wait for the model before further sessions are refused; where half "
        "of the sessions are late by half of it for 3 s, the newest is asked to come again.",
    ),
    click.option(
        "--idle-timeout",
        type=Finite(above=0),
        default=300.0,
        show_default=True,
        help="Seconds without audio or `keepalive`.",
    ),
    click.option(
        "--keepalive-timeout",
        type=Clock(),
        metavar="TIME",
        default="1:00:00",
        show_default=True,
        help="Without audio, whatever keeps a live session alive.",
    ),
    click.option(
        "--exit-when-failing",
        type=Clock(),
        metavar="TIME",
        help="End, with code 1, after so long with a model that cannot work any more, for what starts the "
        "server anew. [never]",
    ),
    click.option(
        "--shutdown-timeout",
        type=Finite(above=0),
        default=30.0,
        show_default=True,
        help="Seconds for requests and sessions to come to their end.",
    ),
)
JOBS = (
    click.option(
        "--jobs-dir",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Take recordings that are answered later (/v1/jobs), and keep them and results there. [no]",
    ),
    click.option(
        "--keep-jobs",
        type=Clock(),
        metavar="TIME",
        default="1:00:00",
        show_default=True,
        help="After a job is over, until its result is removed.",
    ),
    click.option(
        "--max-jobs",
        type=click.IntRange(1),
        default=1000,
        show_default=True,
        help="Jobs that are here at a time, waiting or over; a key with a name has half of them.",
    ),
    click.option(
        "--max-jobs-mb",
        type=Finite(above=0),
        default=4096.0,
        show_default=True,
        help="Of the recordings and results of all jobs.",
    ),
    click.option(
        "--webhook-secret-file",
        metavar="FILE",
        help="Signs what is told to the webhook_url of a job: text, or base64 behind whsec_; keys of "
        "--keys may have their own. [none: no URL is called]",
    ),
    click.option(
        "--webhook-allow",
        multiple=True,
        metavar="NETWORK",
        help="Private addresses that a webhook_url may have. May be repeated. [public ones alone]",
    ),
)
WORK = (
    click.option(
        "--engines",
        type=click.IntRange(1),
        metavar="N",
        help="Threads that each do live sessions' updates, and share the processor threads. "
        "[one for each of --threads, 4 at most; on a GPU 1]",
    ),
    click.option(
        "--longest-interval",
        type=click.Choice(["0.5", "1", "1.5", "2"]),
        default="2",
        show_default=True,
        help="Seconds between two updates of a live session, up to which they come less often under load.",
    ),
    click.option(
        "--file-share",
        type=Finite(above=0),
        default=0.1,
        show_default=True,
        help="Of an engine's time that a recording has at least, however much live work there is.",
    ),
    click.option(
        "--forecast/--no-forecast",
        default=True,
        show_default=True,
        help="Measure what a live session costs when a model is loaded, and refuse those that would make "
        "others late; --no-forecast takes all, and sends none away.",
    ),
    click.option(
        "--encoder-frames",
        type=click.IntRange(1),
        metavar="N",
        help="Of 20 ms, of several sessions in one call of the encoder. [400, on a GPU 11200]",
    ),
    click.option(
        "--rows",
        type=click.IntRange(1),
        metavar="N",
        help="Readings in an engine's running decode. [64, on a GPU 512]",
    ),
)
RAY = (
    click.option("--ray", is_flag=True, help="Replicas on a Ray cluster, behind its proxies (extra `ray`)."),
    click.option(
        "--ray-address", metavar="ADDRESS", help="Of a running cluster. [a new one, of this machine]"
    ),
    click.option(
        "--replicas",
        metavar="N|MIN-MAX",
        default="1",
        show_default=True,
        help="Servers; of MIN-MAX, Ray has as many as there are connections for.",
    ),
    click.option("--cpus-per-replica", type=Finite(above=0), default=1.0, show_default=True),
    click.option(
        "--gpus-per-replica", type=Finite(0), default=0.0, show_default=True, help="0.25: four share one."
    ),
    click.option(
        "--connections-per-replica",
        type=Finite(above=0),
        default=8.0,
        show_default=True,
        help="On the mean, from which on another replica is added.",
    ),
    click.option(
        "--drain",
        type=Clock(),
        metavar="TIME",
        default="10:00",
        show_default=True,
        help="For the connections of a replica that is to go.",
    ),
)
SECTIONS = {
    "Address": LISTENING,
    "Model": (*MODEL, *MODELS, *beam_size(5)),
    "Access": (*ACCESS, *PROXIES),
    "Limits": LIMITS,
    "Jobs": JOBS,
    "Translation of live speech": SERVER,
    "Work under load": WORK,
    "More than one machine": RAY,
}


@click.command(cls=SectionedCommand, sections=SECTIONS, context_settings={"auto_envvar_prefix": ENVIRONMENT})
@with_configuration
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> int:
    """Serve OpenAI's transcription API, live sockets and a web page (needs the extra `serve`).

    Every option may also stand in the file of --config, or in the environment: SOTTOVOCE_SERVE_PORT is
    --port. What is typed wins over the environment, and that over the file.
    """
    from sottovoce.cli.serve_app import serve_app

    return serve_app(given, this_call(context))
