# Next.js with pages/index.tsx, served on port 3000. The files stand here instead of coming from create-next-app, so that
# nothing is asked and dotfiles are not lost; shadcn's components need a web site besides npm's and are left to you.
FROM node:20-slim
ENV NEXT_TELEMETRY_DISABLED=1
WORKDIR /home/user
COPY package.json tsconfig.json next-env.d.ts ./
RUN npm install --no-audit --no-fund && chown -R 1000:1000 /home/user
COPY --chown=1000:1000 pages ./pages
