# Gradio with app.py, served on port 7860.
FROM python:3.11-slim
ENV GRADIO_SERVER_NAME=0.0.0.0 GRADIO_ANALYTICS_ENABLED=False
RUN python3 -m pip install --no-cache-dir --break-system-packages gradio==5.9.1 pandas numpy matplotlib requests
WORKDIR /home/user
COPY --chown=1000:1000 app.py ./
