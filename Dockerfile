# An image with CPU torch. TORCH_INDEX is PyTorch's index of CPU builds, as its installation page shows; the default index
# has CUDA builds, which are several times as large:
#   docker build --build-arg TORCH_INDEX=URL -t headhunt .
#   docker run --rm -v "$PWD:/work" headhunt search reviews.csv --time 10m --out run
FROM python:3.11-slim
ARG TORCH_INDEX=""
ENV HF_HOME=/cache/huggingface HEADHUNT_CACHE=/cache/headhunt PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 10001 headhunt && mkdir -p /cache /work && chown headhunt /cache /work
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
# ray[default] lets KubeRay submit jobs to the image.
RUN pip install --no-cache-dir torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
    && pip install --no-cache-dir "/src[onnx,serve]" "ray[default]>=2.52"
USER headhunt
WORKDIR /work
ENTRYPOINT ["headhunt"]
CMD ["--help"]
