# Vue with Nuxt and app/app.vue, served on port 3000. `nuxi init` would fetch its starter from a web site besides npm's, so
# the files stand here.
FROM node:20-slim
ENV NUXT_TELEMETRY_DISABLED=1
WORKDIR /home/user
COPY package.json nuxt.config.ts tsconfig.json ./
RUN npm install --no-audit --no-fund --ignore-scripts && chown -R 1000:1000 /home/user
COPY --chown=1000:1000 app ./app
