#!/bin/sh
cat /app/answer.txt
if grep -qx "sandbox $E2B_SANDBOX_ID 42" /app/answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
