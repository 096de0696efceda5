# Two images from one file: `--target operator` (small, no torch) and `--target trainer`.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /source
RUN python3 -m venv /opt/trimtab
ENV PATH=/opt/trimtab/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml constraints.txt README.md ./
COPY contract contract
COPY policies policies
COPY operator operator
COPY trainer_image trainer_image
COPY cli cli
COPY sandbox sandbox

FROM build AS build-operator
RUN pip install -c constraints.txt ".[operator]"

FROM build AS build-trainer
RUN pip install -c constraints.txt ".[trainer]"

FROM ${BASE} AS runtime
ENV PATH=/opt/trimtab/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
USER 65532:65532
WORKDIR /tmp

FROM runtime AS trainer
COPY --from=build-trainer /opt/trimtab /opt/trimtab

FROM runtime AS operator
COPY --from=build-operator /opt/trimtab /opt/trimtab
CMD ["python", "-m", "trimtab_operator"]
