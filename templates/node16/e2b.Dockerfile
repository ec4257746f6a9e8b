# Node.js 16 for programs that still need it. Its binary comes from the npm registry, over the newer one of the base.
FROM node:20-slim
RUN npm install --global --prefix /usr/local --no-audit --no-fund node@16 && hash -r && node --version | grep '^v16'
