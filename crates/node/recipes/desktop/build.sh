#!/bin/bash
# The template `desktop`, for E2B's desktop SDKs: Xfce on a virtual screen, what the SDKs call to control it, and a
# browser. The SDKs start the screen and the session themselves. Runs once, as root, in a sandbox of `base`.
set -euo pipefail
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive
total=6
done=0
step() { echo "::step $done/$total $1"; done=$((done + 1)); }
install() { apt-get install -y -qq --no-install-recommends "$@" >apt.log 2>&1 || { tail -n 20 apt.log; return 1; }; }

step "Reading the package lists"
apt-get update -qq

# What the SDKs call: Xvfb, xdpyinfo, xrandr, xdotool, scrot, x11vnc, netstat, pgrep, gtk-launch and xdg-open.
step "Installing the screen and its tools"
install xvfb x11-utils x11-xserver-utils x11-xkb-utils xdotool scrot imagemagick x11vnc novnc websockify net-tools \
  procps libgtk-3-bin xdg-utils desktop-file-utils shared-mime-info dbus-x11 at-spi2-core

step "Installing Xfce"
install xfce4-session xfwm4 xfdesktop4 xfce4-panel xfce4-settings xfce4-terminal thunar mousepad ristretto \
  adwaita-icon-theme gnome-themes-extra fonts-dejavu fonts-liberation fonts-noto-color-emoji

# Ubuntu's packages of Chromium and Firefox only install snaps, which do not run in a sandbox.
step "Installing a browser"
. /etc/os-release
if [ "${ID:-}" != ubuntu ] && install chromium; then
  browser=chromium program=/usr/bin/chromium
elif [ "${ID:-}" != ubuntu ] && install firefox-esr; then
  browser=firefox-esr program=/usr/bin/firefox-esr
else
  install falkon
  browser=org.kde.falkon program=/usr/bin/falkon
fi

step "Configuring the desktop"
# Browsers isolate their pages with user namespaces, which a sandbox has only with `isopod.allow=userns`. Elsewhere, and
# for root, the isolation is the sandbox's.
mkdir -p /usr/local/lib/isopod-desktop
cat >/usr/local/lib/isopod-desktop/can-isolate <<'SH'
#!/bin/sh
[ "$(id -u)" != 0 ] && unshare --user --net true 2>/dev/null
SH
chmod 755 /usr/local/lib/isopod-desktop/can-isolate
case $browser in
chromium)
  # `--test-type` only removes the warning about `--no-sandbox` from the window.
  cat >/etc/chromium.d/isopod <<'SH'
CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-first-run --no-default-browser-check --password-store=basic --disable-dev-shm-usage"
/usr/local/lib/isopod-desktop/can-isolate || CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --test-type"
export CHROMIUM_FLAGS
SH
  ;;
firefox-esr)
  mkdir -p /etc/firefox-esr
  echo 'pref("browser.shell.checkDefaultBrowser", false); pref("browser.aboutwelcome.enabled", false);' >/etc/firefox-esr/isopod.js
  ;;
org.kde.falkon)
  cat >/usr/local/bin/falkon <<'SH'
#!/bin/sh
/usr/local/lib/isopod-desktop/can-isolate || export QTWEBENGINE_DISABLE_SANDBOX=1
exec /usr/bin/falkon "$@"
SH
  chmod 755 /usr/local/bin/falkon
  program=/usr/local/bin/falkon
  ;;
esac

# E2B's examples launch `google-chrome` and `firefox`: both names start the browser that is here.
for name in google-chrome firefox; do
  entry=/usr/share/applications/$name.desktop
  [ -e "$entry" ] || cat >"$entry" <<INI
[Desktop Entry]
Type=Application
Name=Web Browser
Exec=$program %U
Icon=$browser
NoDisplay=true
INI
  command -v "$name" >/dev/null || ln -s "$program" "/usr/local/bin/$name"
done

# What `xdg-open` starts.
cat >/etc/xdg/mimeapps.list <<INI
[Default Applications]
x-scheme-handler/http=$browser.desktop
x-scheme-handler/https=$browser.desktop
x-scheme-handler/about=$browser.desktop
text/html=$browser.desktop
application/xhtml+xml=$browser.desktop
application/pdf=$browser.desktop
inode/directory=thunar.desktop
text/plain=org.xfce.mousepad.desktop
image/png=org.xfce.ristretto.desktop
image/jpeg=org.xfce.ristretto.desktop
image/gif=org.xfce.ristretto.desktop
INI
# Xfce has a choice of its own. It shows a dialog until a helper is named.
mkdir -p /etc/xdg/xfce4 /usr/share/xfce4/helpers
cat >/usr/share/xfce4/helpers/isopod-browser.desktop <<INI
[Desktop Entry]
Version=1.0
Type=X-XFCE-Helper
Name=Web Browser
Icon=$browser
X-XFCE-Category=WebBrowser
X-XFCE-Commands=$program;
X-XFCE-CommandsWithParameter=$program "%s";
INI
cat >/etc/xdg/xfce4/helpers.rc <<INI
WebBrowser=isopod-browser
TerminalEmulator=xfce4-terminal
FileManager=thunar
INI
update-alternatives --set x-www-browser "$program" >/dev/null 2>&1 || true
update-alternatives --set x-terminal-emulator /usr/bin/xfce4-terminal.wrapper >/dev/null 2>&1 || true

# The SDKs start noVNC with `cd /opt/noVNC/utils && ./novnc_proxy`. Distributions name their script differently.
mkdir -p /opt/noVNC/utils
for file in /usr/share/novnc/*; do
  [ "${file##*/}" = utils ] || ln -sfn "$file" /opt/noVNC/
done
cat >/opt/noVNC/utils/novnc_proxy <<'SH'
#!/bin/bash
# Serves noVNC's page, and the VNC server as a WebSocket.
vnc=localhost:5900 listen=6080 web=/opt/noVNC
more=()
while [ $# -gt 0 ]; do
  case $1 in
  --vnc) vnc=$2; shift ;;
  --listen) listen=$2; shift ;;
  --web) web=$2; shift ;;
  *) more+=("$1") ;;
  esac
  shift
done
exec websockify "${more[@]}" --web "$web" "$listen" "$vnc"
SH
chmod 755 /opt/noVNC/utils/novnc_proxy

step "Cleaning up"
for program in Xvfb startxfce4 xdpyinfo xrandr xdotool scrot x11vnc websockify netstat pgrep gtk-launch xdg-open; do
  command -v "$program" >/dev/null || { echo "$program is missing"; exit 1; }
done
apt-get clean
rm -rf /var/lib/apt/lists/* /root/.cache /var/log/apt /var/log/dpkg.log
echo "::step $total/$total Done"
