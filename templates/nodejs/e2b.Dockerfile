# Node.js and npm.
FROM node:20-slim
RUN node --version && npm --version
