# The server in a container, without privileges.
#
#   docker build -t sottovoce .                        # for CPUs: the native kernels, without PyTorch
#   docker build -t sottovoce:cuda --target cuda .     # for CUDA cards
#   docker run -p 127.0.0.1:8000:8000 -v models:/models sottovoce --model base
#   docker run --gpus all -p 127.0.0.1:8000:8000 -v models:/models sottovoce:cuda --model large-v3-turbo
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS environment
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/sottovoce
ENV PATH=/opt/sottovoce/bin:$PATH
WORKDIR /src
COPY constraints.txt ./

FROM environment AS build-cpu
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY kernels kernels
RUN pip install ./kernels
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN pip install --constraint constraints.txt '.[serve]'

FROM build-cpu AS build-cuda
RUN pip install --constraint constraints.txt '.[serve,torch]'

FROM python:${PYTHON}-slim AS server
RUN useradd --create-home --uid 1000 sottovoce && install -d -o sottovoce -g sottovoce /models
ENV PATH=/opt/sottovoce/bin:$PATH HF_HOME=/models XDG_CACHE_HOME=/models PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000
WORKDIR /home/sottovoce
VOLUME /models
EXPOSE 8000
# If a model no longer works, the process ends after 30 s, and the container is restarted.
ENV SOTTOVOCE_SERVE_EXIT_WHEN_FAILING=30
# The first start downloads the model, which may take minutes.
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m \
    CMD ["python", "-m", "sottovoce.server.health_check", "8000"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["sottovoce", "serve", "--host", "0.0.0.0", "--port", "8000"]

FROM server AS cuda
COPY --from=build-cuda /opt/sottovoce /opt/sottovoce

FROM server AS cpu
COPY --from=build-cpu /opt/sottovoce /opt/sottovoce
