# Python with packages for data work and the code interpreter. Isopod brings it; add packages of your own below:
# RUN python3 -m pip install --break-system-packages polars
FROM e2bdev/code-interpreter
