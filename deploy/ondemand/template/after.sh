# Sourced after the page was started: the session's card offers it once it answers.
if ! wait_until_port_used "$host:$port" 180; then
  echo "The page has not answered within 180 s; what it said stands above."
  clean_up 1
fi
