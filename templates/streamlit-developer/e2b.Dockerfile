# Streamlit with app.py, served on port 8501.
FROM python:3.11-slim
RUN python3 -m pip install --no-cache-dir --break-system-packages streamlit==1.41.1 pandas numpy matplotlib requests
WORKDIR /home/user
COPY --chown=1000:1000 app.py ./
