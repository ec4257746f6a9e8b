echo "sandbox $E2B_SANDBOX_ID $((6 * 7))"
