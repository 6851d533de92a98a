# syntax=docker/dockerfile:1
# The webhook as an image: exact versions from the lock, no compiler, no root, nothing written at run time.
FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /app
COPY requirements/run.lock requirements/run.lock
RUN /app/bin/pip install --no-cache-dir --require-hashes -r requirements/run.lock
COPY pyproject.toml README.md LICENSE ./
COPY webhook webhook
COPY certs certs
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheel . \
    && /app/bin/pip install --no-cache-dir --no-deps /wheel/*.whl \
    && /app/bin/python -m compileall -q /app/lib \
    && /app/bin/pip uninstall --yes pip

FROM python:3.13-slim
COPY --from=build /app /app
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["/app/bin/hami-quota"]
CMD ["serve", "--bind", "0.0.0.0:8443"]
