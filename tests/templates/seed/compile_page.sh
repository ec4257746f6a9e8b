#!/bin/bash
# Starts the page and asks for it until it is compiled.
cd /home/user && npx next --turbo &
until curl -fso /dev/null http://localhost:3000; do sleep 0.5; done
wait
