# Two images from one file: `--target operator` (small, no torch) and `--target trainer`. Third-party packages are layers
# of their own, so that a change of the sources alone rebuilds in seconds.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/trimtab
COPY pyproject.toml constraints.txt ./
COPY scripts/requirements.py scripts/

FROM build AS operator-requirements
RUN python3 scripts/requirements.py operator > requirements.txt \
 && /opt/trimtab/bin/pip install --constraint constraints.txt --requirement requirements.txt

FROM build AS trainer-requirements
RUN python3 scripts/requirements.py trainer > requirements.txt \
 && /opt/trimtab/bin/pip install --constraint constraints.txt --requirement requirements.txt

FROM build AS package
COPY . .
RUN /opt/trimtab/bin/pip install --no-deps --target /package .

FROM ${BASE} AS runtime
ENV PATH=/opt/trimtab/bin:$PATH PYTHONPATH=/opt/package PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
USER 65532:65532
WORKDIR /tmp

FROM runtime AS trainer
ENV TRIMTAB_LAUNCHER="python -m trimtab_trainer.launcher"
COPY --from=trainer-requirements /opt/trimtab /opt/trimtab
COPY --from=package /package /opt/package

FROM runtime AS operator
COPY --from=operator-requirements /opt/trimtab /opt/trimtab
COPY --from=package /package /opt/package
CMD ["python", "-m", "trimtab_operator"]
