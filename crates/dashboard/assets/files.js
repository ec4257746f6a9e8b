// Uploads by drop or by choice, and new names.

const files = document.getElementById("files");
const state = document.getElementById("upload-state");
const field = document.getElementById("upload");

async function upload(list) {
  const { upload: url, directory } = document.getElementById("files").dataset;
  let done = 0;
  for (const file of list) {
    state.textContent = `Uploading ${file.name} (${done + 1} of ${list.length})…`;
    const path = `${directory.replace(/\/$/, "")}/${file.name}`;
    const headers = { "x-csrf-token": document.body.dataset.csrf, "content-type": "application/octet-stream" };
    const answer = await fetch(`${url}?path=${encodeURIComponent(path)}`, { method: "POST", headers, body: file }).catch(() => null);
    if (!answer?.ok) {
      const told = await answer?.json().catch(() => null);
      state.textContent = `${file.name} was not uploaded: ${told?.message ?? "the connection broke"}`;
      return;
    }
    done += 1;
  }
  location.reload();
}

if (files) {
  let depth = 0;
  const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragenter", (event) => {
    if (holdsFiles(event)) document.body.classList.toggle("dropping", ++depth > 0);
  });
  addEventListener("dragleave", (event) => {
    if (holdsFiles(event)) document.body.classList.toggle("dropping", --depth > 0);
  });
  addEventListener("dragover", (event) => { if (holdsFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    depth = 0;
    document.body.classList.remove("dropping");
    upload([...event.dataTransfer.files]);
  });
  field.addEventListener("change", () => upload([...field.files]));
}

document.addEventListener("submit", (event) => {
  const { prompt: question, name } = event.target.dataset;
  if (!question) return;
  const given = prompt(question, name);
  if (given === null || given === name) event.preventDefault();
  else event.target.elements.name.value = given;
});
