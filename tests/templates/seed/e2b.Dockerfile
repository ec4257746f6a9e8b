FROM node:21-slim

# Install system dependencies
RUN apt-get update && apt-get install -y curl && \
    apt-get clean && \
    rm -rf /var/lib/apt/lists/*

# Copy and set up entrypoint
COPY compile_page.sh /compile_page.sh
RUN chmod +x /compile_page.sh

# Set up application
WORKDIR /home/user/nextjs-app
RUN npx create-next-app@14.2.20 . --ts --tailwind --no-eslint \
    --import-alias "@/*" --use-npm --no-app --no-src-dir

# Install additional dependencies
RUN npx shadcn@2.1.7 init -d
RUN npx shadcn@2.1.7 add --all
RUN npm install posthog-js

# Move to home directory
RUN mv /home/user/nextjs-app/* /home/user/ && \
    rm -rf /home/user/nextjs-app
